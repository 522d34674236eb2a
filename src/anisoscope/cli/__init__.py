"""The program: commands that parse, call and print.

May import anything below; nothing imports it but `__main__`.
"""
