"""What keeps the documentation true: its code is run, its pictures drawn, its errors counted.

``blocks`` runs the code of a page and compares what it prints, ``drawings`` draws the pictures from
measured numbers and from the pure functions, ``messages`` lists every error that the packages
raise. May import everything below it.
"""
