#!/bin/bash
reward=1
expect() {
    if [ "$(cat "/app/reports/$1")" != "$2" ]; then
        echo "$1 is missing or has other contents"
        reward=0
    fi
}
expect january.md "Sales rose by 4 %."
expect february.md "Sales fell by 1 %."
expect march.md "Sales did not change."
if ls /app/reports/*.txt; then
    reward=0
fi
echo "$reward" > /logs/verifier/reward.txt
