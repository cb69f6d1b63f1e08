#!/bin/bash
answer=$(tr -d '[:space:]' < /app/answer.txt)
if [ "$answer" = 14 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo "answer.txt has '$answer', not 14"
    echo 0 > /logs/verifier/reward.txt
fi
