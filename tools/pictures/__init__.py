"""Pictures of the pack: drawn (icon, banner), or taken of the real frontend in Chromium.

What a prompt makes is no picture of the pack: the demo keeps that, and draws its sheet and chart.
"""
