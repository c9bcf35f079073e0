// Package lab runs real server and host processes on a real PostgreSQL, kills
// them, stops them and cuts what connects them, and holds what clients were
// told and what the hosts' own logs say against each other. It is the small,
// real sister of test/sim.
package lab
