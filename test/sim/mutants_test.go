package sim

import (
	"io"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// An oracle that never finds anything is worth nothing: servers and hosts that
// break a promise on purpose are found out within a few bad days.
func TestTheOracleNotices(t *testing.T) {
	for name, c := range map[string]struct {
		broken broken
		says   string
	}{
		"a host that does not answer counts as empty": {
			broken{looker: func(l converge.Looker) converge.Looker { return credulous{l} }}, "promise 1",
		},
		"old looks are judged as new ones": {
			broken{looker: func(l converge.Looker) converge.Looker {
				return &nostalgic{Looker: l, seen: map[string][]fleet.Observation{}}
			}}, "promise 1",
		},
		"hosts obey a leader of the past":        {broken{obeysAll: true}, "promise 2"},
		"commits are acknowledged and forgotten": {broken{forgets: 0.15}, "promise 3"},
		"what is said to be destroyed is not": {
			broken{provider: func(p provider.Provider) provider.Provider { return lazy{p} }}, "promise 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				for _, p := range play(t, 1000+seed, io.Discard, c.broken) {
					if strings.HasPrefix(p, c.says) {
						t.Logf("found on day %d", seed+1)
						return
					}
				}
			}
			t.Error("nobody noticed in 60 bad days")
		})
	}
}

// The same for what only one scene shows.
func TestTheOracleNoticesOldNews(t *testing.T) {
	if problems := scene(t, 1, broken{tellsOld: true}, askTheStoppedLeader); len(problems) == 0 {
		t.Error("an answer of a leader of the past was not noticed")
	}
}
