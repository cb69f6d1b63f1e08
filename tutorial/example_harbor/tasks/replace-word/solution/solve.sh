#!/bin/bash
set -e
sed -i 's/colour/color/g' /app/notes/*.txt
