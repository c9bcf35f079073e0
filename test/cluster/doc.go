// Package cluster runs real fuse processes for tests: servers on one store,
// simulated hosts, and links between them that can be cut and counted. What it
// starts ends with the test. A test binary that uses it calls Main in TestMain,
// which builds fuse once.
package cluster
