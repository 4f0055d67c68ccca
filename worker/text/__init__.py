"""Text as tokens: windows of token files, and documents packed into rows."""
