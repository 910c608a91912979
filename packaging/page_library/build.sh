#!/bin/sh
# Bundle the d3 modules of the pages, with their licences, into traceq/renderers/html/assets. Needs Node and npm.
set -eu
cd "$(dirname "$0")"
assets=../../traceq/renderers/html/assets
npm ci --silent
npx esbuild d3.mjs --bundle --minify --format=iife --global-name=d3 --target=es2020 --charset=ascii \
  --legal-comments=none --metafile=node_modules/bundled.json --log-level=warning --outfile="$assets/d3.min.js"
for module in $(grep -o 'node_modules/[a-z0-9-]*/' node_modules/bundled.json | sort -u); do
  name=$(basename "$module")
  printf '%s %s\n\n' "$name" "$(node -p "require('./$module/package.json').version")"
  cat "$module/LICENSE"
  printf '\n'
done > "$assets/d3.LICENSE.txt"
