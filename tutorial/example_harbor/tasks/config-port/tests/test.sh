#!/bin/bash
if [ "$(tr -d '[:space:]' < /app/port.txt)" = 5433 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
