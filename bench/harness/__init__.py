"""What `scripts/bench` and `scripts/compare.sh` share: servers under load, the scenarios, the goals, the report.

Python's standard library only. Modules, each using only those before it:

  machine    what is measured on: processor, kernel, disk, commit
  grpc       one unary call to a server, for checks that need no load
  server     a server process on its core: start, load, stop, what it takes of memory and disk
  steady     puts at a steady pace at one member, for what a client sees while the leader is gone
  cluster    three servers as one, and what its leader's end costs
  scenarios  the tables: what is run, on whom, and what is aimed at
  summary    from results.json to figures: medians, ratios, goals
  tables     the figures as text and as Markdown
  charts     SVG
  report     the HTML page
  runs       the runs themselves, in turn, with their checks
  compare    the command line of scripts/compare.sh
"""
