#!/bin/bash
# garden.txt needs no change, so an agent that does nothing gets 0.25.
right=0
expect() {
    if [ "$(cat "/app/notes/$1")" = "$2" ]; then
        right=$((right + 1))
    else
        echo "$1 is not correct"
    fi
}
expect walls.txt "The color of the walls is white."
expect doors.txt "A door has a color and a lock.
The color fades."
expect roof.txt "No color suits every roof: a light color keeps it cool."
expect garden.txt "The garden has six trees."
awk -v right="$right" 'BEGIN { printf "{\"reward\": %s}\n", right / 4 }' > /logs/verifier/reward.json
