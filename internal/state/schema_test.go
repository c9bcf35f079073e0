package state

import "testing"

// Every table has a place in the counts.
func TestCountsHoldEveryTable(t *testing.T) {
	var c counts
	if len(Tables) > len(c) {
		t.Fatalf("%d tables, room for %d", len(Tables), len(c))
	}
	for _, table := range Tables {
		*c.of(table)++
	}
	for i := range Tables {
		if c[i] != 1 {
			t.Errorf("table %s is counted %d times", Tables[i], c[i])
		}
	}
}
