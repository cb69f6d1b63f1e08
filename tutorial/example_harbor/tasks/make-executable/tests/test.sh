#!/bin/bash
reward=0
if [ "$(/app/greet.sh world)" = "Hello, world" ] && [ "$(sed -n 2p /app/greet.sh)" = 'echo "$GREETING, $1"' ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
