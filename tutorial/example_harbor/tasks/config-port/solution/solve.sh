#!/bin/bash
set -e
sed -n "/^\[$SECTION\]/,/^$/ s/^port = //p" /app/server.ini > /app/port.txt
