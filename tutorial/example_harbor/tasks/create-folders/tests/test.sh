#!/bin/bash
if [ -d /app/menü/日本 ] && [ "$(cat /app/menü/crème/prix.txt)" = "café: 3 €" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
