"""Everything that is only read: one module a subject, each function one consistent answer of a frozen type.

A report knows the database and the domain. It does not know the wire, whose shapes `http` makes of these results, nor
the memory of a server: what a report needs of that is handed in.
"""
