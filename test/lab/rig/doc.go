// Package rig builds a lab of several hosts on one machine. Each host is a set
// of namespaces (network, mounts, processes, name) with its own host agent, its
// own addresses, machine id and boot id; servers and a database stand beside
// them; a bridge in between can lose, delay or cut what passes. Real machines
// run in it, or simulated ones.
//
//	func TestMain(m *testing.M) { rig.Main(m) }
//
//	l := rig.New(t, rig.Options{Hosts: 3})
//	l.CLI("create", "--task-id", "one")
//	l.Host(0).Cut()
//
// A lab goes with its test, and nothing of it is left: when the test process is
// killed the kernel ends what it ran, and the next lab sweeps the rest.
// It needs root. docs/contributing/lab.md is for people.
package rig
