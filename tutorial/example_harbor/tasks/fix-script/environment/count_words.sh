#!/bin/bash
# Prints the number of words in the file $1.
wc -l < "$1"
