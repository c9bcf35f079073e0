// Package playguard holds Playguard's fault table: each row breaks one thing
// on a real host and says what has to come of it. docs/reference has the table
// of rows, docs/contributing how to add one.
package playguard
