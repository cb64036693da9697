"""The terminal: options, output, progress and exit codes. No computing; everything it shows comes from ``qtool.api``.

Nothing heavy is imported here: commands import the api in their bodies, so that ``qtool --help`` answers at once.
"""
