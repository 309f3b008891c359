"""What coding agents did: captured, segmented, analysed, turned into measured patches of their skills.

hook → `payload` → `redaction` → `capture` → `store` → `segmenters` → `analyzer` → `proposers` → `patches` →
`evaluation` → `lifecycle` → skill-bank → the next round's prompt.

`payload`, `redaction` and `capture` run inside hooks: they import the standard library only.
"""
