package loop_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// follow begins a term in which playgrounds follow branches; the definitions of an
// owner may take so many bytes.
func (w *world) follow(n int64, stored int) *leader {
	l := &leader{world: w}
	log := slog.New(slog.DiscardHandler)
	f := branch.New(branch.Config{
		Store: w.store, Sealer: w.sealer, Installation: inst, Policy: w.policy, Logger: log, MaxStored: stored,
		Host:  func(m records.Marquee) branch.Git { return w.sims[m.ID] },
		Begin: func(m model.MarqueeID, p model.PlaygroundID) { l.Begin(m, p) }, Kick: func(m model.MarqueeID) { l.Kick(m) },
	})
	l.branches = f
	f.Worker = work.New(work.Config{Store: w.store, Sealer: w.sealer, Installation: inst, Policy: w.policy, Logger: log, Maker: f, Lease: func() (time.Duration, error) { return time.Minute, nil }})
	l.Loop = loop.New(loop.Config{Store: term{w.store, n}, Policy: w.policy, Logger: log, Host: func(m records.Marquee) work.Host { return w.sims[m.ID] }, Worker: f.Worker, Before: []loop.Phase{f.Phase()}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	l.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	synctest.Wait()
	return l
}

// branched asks for a playground of a branch.
func (w *world) branched(l *leader, git *repositories, id model.PlaygroundID) {
	w.t.Helper()
	w.branchedAt(l, git, id, "https://git.example.org/"+string(id))
}

func (w *world) branchedAt(l *leader, git *repositories, id model.PlaygroundID, url string) {
	w.t.Helper()
	git.push(url, "main", composeOf("1"))
	project, err := model.NewProject("shop", id)
	if err != nil {
		w.t.Fatal(err)
	}
	w.update(func(tx *state.Tx) error {
		return records.PutPlayground(tx, records.Playground{
			Name: string(id), Owner: "ann", CreatedAt: tx.Now(), Source: records.Source{Repository: url, Branch: "main", Checkout: "src"},
			Playground: model.Playground{ID: id, Marquee: "m0", Project: project, Intent: model.IntentUp, State: model.StatePending, StateSince: tx.Now(),
				Owed: model.ActionCreate, Queued: model.Queued{At: tx.Now()}},
		})
	})
	l.Begin("m0", id)
}

// Branches that cannot be read wait, and those of other playgrounds go forward.
func TestBranchesThatFailAreNotInTheWay(t *testing.T) {
	bubble(t, 1, func(w *world) {
		w.policy.RolloutsPerPass = 1
		s, git := w.sims["m0"], newRepositories()
		s.git = git
		l := w.follow(1, 0)
		defer l.stop()
		var all []model.PlaygroundID
		for i := range 10 {
			all = append(all, model.PlaygroundID(fmt.Sprintf("p%02d", i)))
			w.branched(l, git, all[i])
		}
		pass(8 * time.Minute)
		for _, id := range all {
			w.want(id, model.StateRunning)
		}
		heads := map[model.PlaygroundID]string{}
		s.set(func(s *sim) {
			for _, id := range all[:8] {
				s.closed[id] = true
			}
		})
		for _, id := range all {
			heads[id] = git.push("https://git.example.org/"+string(id), "main", composeOf("2"))
		}
		pass(25 * time.Minute)
		for _, id := range all[8:] {
			if p := w.want(id, model.StateRunning); p.Source.Commit != heads[id] {
				t.Errorf("%s is behind: %s", id, p.Source.Problem)
			}
		}
		s.set(func(s *sim) { clear(s.closed) })
		pass(40 * time.Minute)
		for _, id := range all {
			if p := w.want(id, model.StateRunning); p.Source.Commit != heads[id] || p.Source.Problem != "" {
				t.Errorf("%s is behind after its host was mended: %s %s", id, p.Source.Problem, p.Source.Why)
			}
		}
	})
}

// A definition for which its owner has no room is told of once, not fetched again
// each minute, and taken when there is room. So is one of a new playground.
func TestABranchThatFindsNoRoom(t *testing.T) {
	bubble(t, 1, func(w *world) {
		s, git := w.sims["m0"], newRepositories()
		s.git = git
		l := w.follow(1, 0)
		w.branched(l, git, pg)
		pass(20 * time.Minute)
		w.want(pg, model.StateRunning)
		l.stop()
		l = w.follow(2, 1)
		head := git.push("https://git.example.org/"+string(pg), "main", composeOf("2"))
		before := len(s.ran())
		pass(2 * time.Hour)
		p := w.want(pg, model.StateRunning)
		if p.Source.Problem != records.ProblemRefused || !strings.Contains(p.Source.Why, "bytes") || w.events(fleet.EventPlaygroundBranchTrouble) != 1 {
			t.Errorf("problem %q: %s; told %d times", p.Source.Problem, p.Source.Why, w.events(fleet.EventPlaygroundBranchTrouble))
		}
		if n := len(s.ran()) - before; n < 3 || n > 20 {
			t.Errorf("%d operations in two hours", n)
		}
		w.branched(l, git, "fresh")
		pass(time.Minute)
		if p := w.want("fresh", model.StateError); !strings.Contains(p.Failure.Text, "bytes") {
			t.Errorf("%+v", p.Failure)
		}
		l.stop()
		l = w.follow(3, 0)
		defer l.stop()
		pass(30 * time.Minute)
		if p := w.want(pg, model.StateRunning); p.Source.Commit != head || p.Source.Problem != "" {
			t.Errorf("with room again: %q %s", p.Source.Problem, p.Source.Why)
		}
	})
}

// Git servers that never answer are not in the way of one that does: what somebody
// asks for is asked for at once, and the rest in its time.
func TestGitServersThatNeverAnswer(t *testing.T) {
	const live, liveURL = model.PlaygroundID("live"), "https://git.example.org/live"
	for name, url := range map[string]string{"each another": "https://%s.example.com/shop", "all one": "https://dead.example.com/%s"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				s, git := w.sims["m0"], newRepositories()
				s.git, s.deadGit = git, map[string]bool{}
				l := w.follow(1, 0)
				defer l.stop()
				var all []model.PlaygroundID
				for i := range 20 {
					id := model.PlaygroundID(fmt.Sprintf("dead%02d", i))
					all = append(all, id)
					w.branchedAt(l, git, id, fmt.Sprintf(url, id))
				}
				w.branchedAt(l, git, live, liveURL)
				pass(20 * time.Minute)
				for _, id := range append(all, live) {
					w.want(id, model.StateRunning)
				}
				s.set(func(s *sim) {
					for _, id := range all {
						s.deadGit[fmt.Sprintf(url, id)] = true
					}
				})
				followed := func(when, head string) {
					if p := w.want(live, model.StateRunning); p.Source.Commit != head {
						t.Errorf("%s: it is behind: %q %s", when, p.Source.Problem, p.Source.Why)
					}
				}
				pass(3 * time.Minute) // they are being asked
				head := git.push(liveURL, "main", composeOf("2"))
				l.branches.Check(w.want(live, model.StateRunning))
				pass(30 * time.Second)
				followed("somebody asked", head)
				pass(20 * time.Minute)
				head = git.push(liveURL, "main", composeOf("3"))
				pass(4 * time.Minute)
				followed("in its turn", head)
				pass(2 * time.Hour)
				for _, id := range all {
					if p := w.want(id, model.StateRunning); p.Source.Problem != records.ProblemAsk {
						t.Errorf("%s: problem %q after two hours without an answer", id, p.Source.Problem)
					}
				}
			})
		})
	}
}

// A push during an ask is not taken for answered by it.
func TestAPushWhileItsServerIsAsked(t *testing.T) {
	bubble(t, 1, func(w *world) {
		s, git := w.sims["m0"], newRepositories()
		s.git, s.deadGit = git, map[string]bool{}
		l := w.follow(1, 0)
		defer l.stop()
		w.branched(l, git, pg)
		pass(10 * time.Minute)
		url := w.want(pg, model.StateRunning).Source.Repository
		s.set(func(s *sim) { s.deadGit[url] = true })
		l.branches.Check(w.want(pg, model.StateRunning))
		pass(5 * time.Second) // it is being asked, and will not be answered
		s.set(func(s *sim) { delete(s.deadGit, url) })
		head := git.push(url, "main", composeOf("2"))
		l.branches.Check(w.want(pg, model.StateRunning))
		pass(time.Minute)
		if p := w.want(pg, model.StateRunning); p.Source.Commit != head {
			t.Errorf("it is behind: %q %s", p.Source.Problem, p.Source.Why)
		}
	})
}
