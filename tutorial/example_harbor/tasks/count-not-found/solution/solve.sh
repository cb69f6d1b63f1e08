#!/bin/bash
set -e
grep -c 404 /app/requests.txt > /app/answer.txt
