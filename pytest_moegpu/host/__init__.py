"""Everything that touches the machine: devices, processes, sockets, files, clocks."""
