#!/bin/bash
# cases.txt: the number of words, then the text.
reward=1
while read -r number text; do
    printf '%s\n%s\n' "$text" "$text" > /tmp/case.txt
    counted=$(bash "$SCRIPT" /tmp/case.txt | tr -d '[:space:]')
    if [ "$counted" != $((2 * number)) ]; then
        echo "'$text' twice: printed '$counted', not $((2 * number))"
        reward=0
    fi
done < /tests/cases.txt
echo "$reward" > /logs/verifier/reward.txt
