#!/bin/bash
set -e
chmod +x /app/greet.sh
