#!/bin/bash
set -e
cd /app/reports
for file in *.txt; do
    mv "$file" "${file%.txt}.md"
done
