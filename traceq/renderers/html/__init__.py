"""Render a sheet or a diff as one HTML file that opens offline: findings, charts and sortable tables."""
