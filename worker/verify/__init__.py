"""Which data is it, and do all processes see the same?"""
