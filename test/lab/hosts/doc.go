// Package hosts tests a fleet of several real hosts: where environments go, and
// what comes of them when hosts are cut off, drained, killed, forgotten, and
// come back.
package hosts
