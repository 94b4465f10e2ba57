//! Boot and shutdown: reads `config`, assigns roles, wires everything.
