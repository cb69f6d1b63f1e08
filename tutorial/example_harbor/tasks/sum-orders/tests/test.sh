#!/bin/bash
right=0
[ "$(tr -d '[:space:]' < /app/total.txt)" = 405 ] && right=$((right + 1))
[ "$(tr -d '[:space:]' < /app/largest.txt)" = 240 ] && right=$((right + 1))
awk -v right="$right" 'BEGIN { print right / 2 }' > /logs/verifier/reward.txt
