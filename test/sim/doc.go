// Package sim is the truth machine: the real server and the real host agent
// run in one process and in virtual time, with everything between them made of
// memory, so that hours of a bad day pass in a moment and any call can be lost,
// held up or repeated, and any process killed or stopped, at any instant.
//
// Two witnesses are heard, and neither is our own state: the record of the
// hosts, of what was really started and removed there and by which order, and
// the history of the clients, of what they asked for and were told. The oracle
// holds the five promises of the architecture against them.
//
// docs/contributing/truth-machine.md says how to run it, read a failure, play
// a seed again and add a fault.
package sim
