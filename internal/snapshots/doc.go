// Package snapshots keeps the snapshots of environments: takes them, puts
// environments back to them, forks from them, and deletes them, so that record
// and bytes agree whatever fails in between. A record is there before the first
// byte and goes after the last.
package snapshots
