"""Do all processes see the same data?"""
