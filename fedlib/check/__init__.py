"""Checks for the exercises, one module a chapter: ``from fedlib.check import chapter01 as check``.

A check tests *properties* of an answer on random inputs, never its text and never a stored copy of the
solution.  It says which property broke and why that usually happens.
"""
