// Package failover holds the tests of several server processes on one store:
// what happens to answers, work and clients when the leader is killed, frozen,
// stopped, or cut off from its database.
package failover
