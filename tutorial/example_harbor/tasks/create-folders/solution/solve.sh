#!/bin/bash
set -e
mkdir -p /app/menü/crème /app/menü/日本
echo 'café: 3 €' > /app/menü/crème/prix.txt
