#!/bin/bash
if [ "$FILES_DIR" = /app/files ] && [ "$(tr -d '[:space:]' < /app/answer.txt)" = beta.bin ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
