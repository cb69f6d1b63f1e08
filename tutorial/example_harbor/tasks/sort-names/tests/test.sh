#!/bin/bash
# Runs in the [environment] workdir of task.toml, like every command of this task.
if printf '%s\n' ada bela ines karl lena maya otto zoe | cmp - sorted.txt; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
