#!/bin/bash
set -e
ls -S "$FILES_DIR" | head -n 1 > /app/answer.txt
