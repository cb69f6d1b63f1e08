#!/bin/bash
set -e
cd /app
tail -n +2 orders.csv | cut -d, -f3 > /tmp/amounts
awk '{ total += $1 } END { print total }' /tmp/amounts > total.txt
sort -n /tmp/amounts | tail -n 1 > largest.txt
