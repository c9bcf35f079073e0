package state_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// in returns v in another state.
func in(v fleet.VM, s fleet.VMState) fleet.VM {
	v.State = s
	return v
}

func with(v fleet.VM, edit func(*fleet.VM)) fleet.VM {
	edit(&v)
	return v
}

func withGPU(name, device string) fleet.VM {
	return with(vm(name), func(v *fleet.VM) { v.Spec.GPUs, v.Spec.GPUUUIDs = 1, []string{device} })
}

// Each case runs on a store with host h1 (8 CPUs, 2 GPUs, one MIG profile) and
// environments a (provisioning), run (running) and gpu (provisioning, device g1).
func TestInvariants(t *testing.T) {
	for name, tt := range map[string]struct {
		fn   func(*state.Tx) error
		want error // nil: allowed
		code fleet.Code
		text string
	}{
		"a transition the table allows": {
			fn: func(tx *state.Tx) error { return tx.PutVM(in(vm("a"), fleet.VMStateRunning)) },
		},
		"a transition it does not": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(in(vm("run"), fleet.VMStateProvisioning)) },
			code: fleet.CodeConflict, text: "from running to provisioning",
		},
		"a row that does not begin at the beginning": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(in(vm("new"), fleet.VMStateRunning)) },
			code: fleet.CodeConflict, text: "from no row to running",
		},
		"a running row deleted": {
			fn:   func(tx *state.Tx) error { return tx.DeleteVM("fuse-run") },
			code: fleet.CodeConflict, text: "from running to no row",
		},
		"a life replaced in its row": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("a"), func(v *fleet.VM) { v.UID = "other" })) },
			code: fleet.CodeConflict, text: "holds life uid-a",
		},
		"a life replaced after its end": {
			fn: func(tx *state.Tx) error {
				return errors.Join(tx.DeleteVM("fuse-a"), tx.PutVM(with(vm("a"), func(v *fleet.VM) { v.UID = "other" })))
			},
		},
		"a generation that falls": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("a"), func(v *fleet.VM) { v.Generation = -1 })) },
			code: fleet.CodeConflict, text: "generation is 0",
		},
		"a task held twice": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.TaskID = "run" })) },
			want: fleet.ErrTaskAlreadyAssigned, code: fleet.CodeConflict, text: "fuse-run",
		},
		"a task that changes hands": {
			fn: func(tx *state.Tx) error {
				return errors.Join(tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.TaskID = "a" })), tx.DeleteVM("fuse-a"))
			},
		},
		"a uid used twice": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.UID = "uid-run" })) },
			code: fleet.CodeConflict, text: "belongs to environment",
		},
		"a host that is not there": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.HostID = "h9" })) },
			want: fleet.ErrHostNotFound, code: fleet.CodeConflict, text: "h9",
		},
		"a host deleted under its environments": {
			fn:   func(tx *state.Tx) error { return tx.DeleteHost("h1") },
			want: fleet.ErrHostHasVMs, code: fleet.CodeConflict, text: "host h1: environment fuse-a is on it",
		},
		"a host that fills up": {
			fn: func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.Spec.CPUs = 5 })) },
		},
		"one CPU more": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.Spec.CPUs = 6 })) },
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "9 of 8 cpus",
		},
		"too much memory": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.Spec.RamMB = 8192 })) },
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "ram_mb",
		},
		"too large a disk": {
			fn: func(tx *state.Tx) error {
				return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.Spec.StorageGB = 99 }))
			},
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "storage_gb",
		},
		"a MIG profile beyond the instances": {
			fn: func(tx *state.Tx) error {
				return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.Spec.GPUs, v.Spec.GPUProfile = 2, "1g.10gb" }))
			},
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "mig_profiles.1g.10gb",
		},
		"a host made smaller than what it holds": {
			fn: func(tx *state.Tx) error {
				return tx.PutHost(fleet.Host{ID: "h1", Capacity: fleet.HostCapacity{CPUs: 1, RamMB: 1, StorageGB: 1, VMCount: 1}})
			},
		},
		"a host whose overhead was found to be larger": {
			fn: func(tx *state.Tx) error { return tx.PutHost(withOverhead(tx, 5000)) },
		},
		"one more on a host whose overhead leaves no room": {
			fn: func(tx *state.Tx) error {
				return errors.Join(tx.PutHost(withOverhead(tx, 5000)), tx.PutVM(vm("new")))
			},
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "ram_mb",
		},
		"a device of its own": {
			fn: func(tx *state.Tx) error { return tx.PutVM(withGPU("new", "g2")) },
		},
		"a device bound twice": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(withGPU("new", "g1")) },
			want: fleet.ErrNoCapacity, code: fleet.CodeUnavailable, text: "device g1 is held by environment fuse-gpu",
		},
		"a device that changes hands in one update": {
			fn: func(tx *state.Tx) error {
				return errors.Join(tx.PutVM(withGPU("new", "g1")), tx.DeleteVM("fuse-gpu"))
			},
		},
		"an empty id": {
			fn:   func(tx *state.Tx) error { return tx.PutHost(fleet.Host{}) },
			code: fleet.CodeInvalidArgument, text: "it has no id",
		},
		"an empty uid": {
			fn:   func(tx *state.Tx) error { return tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.UID = "" })) },
			code: fleet.CodeInvalidArgument, text: "it has no uid",
		},
		"a NUL in a key": {
			fn:   func(tx *state.Tx) error { return tx.PutIdempotency(state.Idempotency{Owner: "o", Key: "a\x00b"}) },
			code: fleet.CodeInvalidArgument, text: "NUL",
		},
		"an environment that is not there": {
			fn:   func(tx *state.Tx) error { return tx.DeleteVM("none") },
			want: fleet.ErrVMNotFound, code: fleet.CodeNotFound, text: "none",
		},
		"a host that is not there deleted": {
			fn:   func(tx *state.Tx) error { return tx.DeleteHost("none") },
			want: fleet.ErrHostNotFound, code: fleet.CodeNotFound, text: "none",
		},
		"a host that comes and goes": {
			fn: func(tx *state.Tx) error { return errors.Join(tx.PutHost(fleet.Host{ID: "h2"}), tx.DeleteHost("h2")) },
		},
		"a host that comes after its environment": {
			fn: func(tx *state.Tx) error {
				h := host
				h.ID = "h2"
				return errors.Join(tx.PutVM(with(vm("new"), func(v *fleet.VM) { v.HostID = "h2" })), tx.PutHost(h))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t)
			update(t, s, func(tx *state.Tx) error {
				h := host
				h.Capacity.GPUs, h.Capacity.MIGProfiles = 2, map[string]int{"1g.10gb": 1}
				return errors.Join(tx.PutHost(h), tx.PutVM(vm("a")), tx.PutVM(vm("run")), tx.PutVM(withGPU("gpu", "g1")))
			})
			update(t, s, func(tx *state.Tx) error { return tx.PutVM(in(vm("run"), fleet.VMStateRunning)) })
			before := rows(t, s)
			_, err := s.Update(t.Context(), tt.fn)
			if tt.code == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if fleet.CodeOf(err) != tt.code || tt.want != nil && !errors.Is(err, tt.want) || err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v (%s)", err, fleet.CodeOf(err))
			}
			if tt.code == fleet.CodeUnavailable {
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Details[fleet.DetailLimit] == "" || fe.Details[fleet.DetailUsage] == "" || fe.Details[fleet.DetailRemedy] == "" {
					t.Errorf("the refusal does not name limit, usage and remedy: %+v", fe)
				}
			}
			if diff := gocmp.Diff(before, rows(t, s)); diff != "" {
				t.Errorf("a refused update left a trace:\n%s", diff)
			}
		})
	}
}

// withOverhead is the host with another overhead per VM.
func withOverhead(tx *state.Tx, mb int) fleet.Host {
	h, _ := tx.Hosts().Get("h1")
	changed := *h
	changed.Facts.OverheadMB = mb
	return changed
}

// rows copies all that readers see of environments and hosts.
func rows(t *testing.T, s *state.Store) (out []any) {
	t.Helper()
	err := s.View(func(tx *state.ReadTx) error {
		for v := range tx.VMs().All() {
			out = append(out, *v)
		}
		for h := range tx.Hosts().All() {
			out = append(out, *h)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatDestroyingHoldsCountsUntilItsRowIsGone(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, put(vm("a")))
	allocated := func() (n int) {
		err := s.View(func(tx *state.ReadTx) error {
			h, _ := tx.Hosts().Get("h1")
			n = h.Allocated.VMCount
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	update(t, s, func(tx *state.Tx) error { return tx.PutVM(in(vm("a"), fleet.VMStateDestroying)) })
	if n := allocated(); n != 1 {
		t.Errorf("%d allocated while destroying", n)
	}
	update(t, s, func(tx *state.Tx) error { return tx.DeleteVM("fuse-a") })
	if n := allocated(); n != 0 {
		t.Errorf("%d allocated after the end", n)
	}
}

// Two hold one device for a moment within an Update, on a host that is new in
// it: the total at its end still names the device.
func TestADeviceSurvivesItsSecondHolder(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, func(tx *state.Tx) error {
		h := host
		h.ID, h.Capacity.GPUs = "h2", 2
		there := func(v fleet.VM) fleet.VM { v.HostID = "h2"; return v }
		return errors.Join(tx.PutHost(h), tx.PutVM(there(withGPU("b", "g2"))), tx.PutVM(there(withGPU("a", "g2"))),
			tx.PutVM(there(vm("a"))))
	})
	if err := s.View(func(tx *state.ReadTx) error {
		h, _ := tx.Hosts().Get("h2")
		if got := h.Allocated; got.GPUs != 1 || !slices.Equal(got.GPUDeviceUUIDs, []string{"g2"}) {
			t.Errorf("allocated %+v, want one GPU, g2", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestLivesAreFoundNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t)
		end := func(id, uid string) {
			<-time.After(time.Hour) // virtual
			update(t, s, func(tx *state.Tx) error {
				tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: id, UID: uid, State: fleet.VMStateDestroyed})
				return tx.PutLife(fleet.Life{UID: uid, VMID: id})
			})
		}
		end("a", "u1")
		end("b", "u2")
		end("a", "u3")
		end("ab", "u4") // its id begins like another's
		update(t, s, func(tx *state.Tx) error { return errors.Join(tx.DeleteLife("u4"), tx.DeleteLife("none")) })
		end("a", "u5")
		err := s.View(func(tx *state.ReadTx) error {
			latest, ok := tx.Lives().Latest("a")
			if !ok || latest.UID != "u5" || latest.EndedSeq != 5 || latest.EndedAt.IsZero() {
				t.Errorf("latest %+v", latest)
			}
			if _, ok := tx.Lives().Latest("none"); ok {
				t.Error("a life of nothing")
			}
			if l, ok := tx.Lives().GetUID("u2"); !ok || l.EndedSeq != 2 {
				t.Errorf("u2 %+v", l)
			}
			var newest, oldest, ofA []string
			for l := range tx.Lives().All() {
				newest = append(newest, l.UID)
			}
			for l := range tx.Lives().Oldest() {
				oldest = append(oldest, l.UID)
			}
			for l := range tx.Lives().ByVM("a") {
				ofA = append(ofA, l.UID)
			}
			if !slices.Equal(newest, []string{"u5", "u3", "u2", "u1"}) || !slices.Equal(oldest, []string{"u1", "u2", "u3", "u5"}) || !slices.Equal(ofA, []string{"u5", "u3", "u1"}) || tx.Lives().Len() != 4 {
				t.Errorf("newest %v, oldest %v, of a %v, %d", newest, oldest, ofA, tx.Lives().Len())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeadLettersCountRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t)
		letter := fleet.DeadLetter{Kind: fleet.DeadLetterOrphanDestroy, EntityID: "e", RetryCount: 5}
		first := update(t, s, func(tx *state.Tx) error { return tx.UpsertDeadLetter(letter) }).At
		<-time.After(time.Minute) // virtual
		letter.RetryCount = 0
		second := update(t, s, func(tx *state.Tx) error { return tx.UpsertDeadLetter(letter) }).At
		err := s.View(func(tx *state.ReadTx) error {
			d, ok := tx.DeadLetters().Get(letter.Kind, "e")
			if !ok || d.RetryCount != 6 || !d.FirstSeenAt.Equal(first) || !d.LastSeenAt.Equal(second) {
				t.Errorf("%+v", d)
			}
			if n := len(slices.Collect(tx.DeadLetters().All())); n != 1 {
				t.Errorf("%d letters", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		update(t, s, func(tx *state.Tx) error { return tx.DeleteDeadLetter(letter.Kind, "e") })
	})
}

func TestIdempotencyRecordsAgeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t)
		begin := time.Now()
		for _, key := range []string{"c", "a", "b"} {
			<-time.After(time.Hour) // virtual
			update(t, s, func(tx *state.Tx) error { return tx.PutIdempotency(state.Idempotency{Owner: "o", Key: key}) })
		}
		update(t, s, func(tx *state.Tx) error {
			var old []*state.Idempotency
			for r := range tx.IdempotencyBefore(begin.Add(150 * time.Minute)) {
				old = append(old, r)
			}
			if len(old) != 2 || old[0].Key != "c" || old[1].Key != "a" {
				t.Errorf("older than 150 minutes: %v", old)
			}
			for _, r := range old {
				if err := tx.DeleteIdempotency(r.Owner, r.Key); err != nil {
					return err
				}
			}
			return nil
		})
		err := s.View(func(tx *state.ReadTx) error {
			_, gone := tx.Idempotency("o", "c")
			r, ok := tx.Idempotency("o", "b")
			if gone || !ok || r.CreatedAt.IsZero() {
				t.Errorf("gone %v, left %+v", gone, r)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestListsAreOrderedAndBounded(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, func(tx *state.Tx) error {
		return errors.Join(tx.PutHost(host), tx.PutVM(vm("b")), tx.PutVM(vm("a")), tx.PutVM(vm("a-b")), tx.PutVM(vm("ab")),
			tx.PutTask(fleet.Task{TaskID: "t2"}), tx.PutTask(fleet.Task{TaskID: "t1"}), tx.DeleteTask("t2"),
			tx.PutSnapshot(fleet.Snapshot{SnapshotID: "s2", VMID: "v"}), tx.PutSnapshot(fleet.Snapshot{SnapshotID: "s1", VMID: "v"}),
			tx.PutSnapshot(fleet.Snapshot{SnapshotID: "s3", VMID: "w"}), tx.DeleteSnapshot("s3"))
	})
	err := s.View(func(tx *state.ReadTx) error {
		var after, snapshots []string
		for v := range tx.VMs().After("fuse-a") {
			after = append(after, v.ID)
		}
		for s := range tx.Snapshots().ByVM("v") {
			snapshots = append(snapshots, s.SnapshotID)
		}
		if !slices.Equal(after, []string{"fuse-a-b", "fuse-ab", "fuse-b"}) || !slices.Equal(snapshots, []string{"s1", "s2"}) {
			t.Errorf("after a: %v, snapshots %v", after, snapshots)
		}
		if len(slices.Collect(tx.Tasks().All())) != 1 || tx.Tasks().Len() != 1 || tx.Hosts().Len() != 1 || len(slices.Collect(tx.Snapshots().All())) != 2 {
			t.Error("tasks, hosts or snapshots miscounted")
		}
		for range tx.VMs().ByHost("") {
			t.Error("an environment on no host")
		}
		if _, ok := tx.VMs().ByTask(""); ok {
			t.Error("an environment of no task")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestStartupLogsKeepTheirEnd(t *testing.T) {
	s := storetest.Open(t)
	output := append(bytes.Repeat([]byte("x"), fleet.MaxStartupLog), "the end"...)
	update(t, s, func(tx *state.Tx) error { return tx.PutStartupLog(fleet.StartupLog{UID: "u", Output: output}) })
	l, ok, err := s.StartupLog(t.Context(), "u")
	if err != nil || !ok || len(l.Output) != fleet.MaxStartupLog || !l.Truncated || !bytes.HasSuffix(l.Output, []byte("the end")) {
		t.Errorf("%d bytes, truncated %v, %v %v", len(l.Output), l.Truncated, ok, err)
	}
	update(t, s, func(tx *state.Tx) error { return tx.DeleteStartupLog("u") })
	if _, ok, err := s.StartupLog(context.Background(), "u"); ok || err != nil {
		t.Errorf("after its deletion: %v %v", ok, err)
	}
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutStartupLog(fleet.StartupLog{}) }); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("without a uid: %v", err)
	}
}

func TestPurgeEventsWorksInSteps(t *testing.T) {
	s := storetest.Open(t)
	for range 3 {
		update(t, s, emit(700))
	}
	n, err := s.PurgeEvents(t.Context(), time.Time{}, 100)
	if err != nil || n != 2000 {
		t.Errorf("%d went, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := s.PurgeEvents(ctx, time.Now(), 0); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("with an ended context: %d, %v", n, err)
	}
}

// A pointer into something larger would keep that alive as long as the row.
func TestARowOwnsItsPlacement(t *testing.T) {
	s := storetest.Open(t)
	larger := struct {
		fleet.PlacementDecision
		_ [1 << 20]byte
	}{PlacementDecision: fleet.PlacementDecision{HostID: "h1"}}
	update(t, s, put(with(vm("a"), func(v *fleet.VM) { v.Placement = &larger.PlacementDecision })))
	err := s.View(func(tx *state.ReadTx) error {
		got, _ := tx.VMs().Get("fuse-a")
		if got.Placement == &larger.PlacementDecision || *got.Placement != larger.PlacementDecision {
			t.Errorf("placement %p %+v", got.Placement, got.Placement)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
