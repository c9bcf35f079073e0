package lifecycle

import (
	"context"
	"log/slog"
	"strconv"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// BenchmarkCreate is the control plane's own share of a create: a host that
// answers at once and a journal in memory.
func BenchmarkCreate(b *testing.B) {
	ctx := context.Background()
	journal := memory.New(memory.Options{})
	store, err := state.Open(ctx, state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "bench"}})
	if err != nil {
		b.Fatal(err)
	}
	svc, err := New(Config{Store: store, Providers: providers{newHost()}, Sealer: plainSealer{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := store.Update(ctx, func(tx *state.Tx) error {
		big := 1 << 40
		return tx.PutHost(fleet.Host{ID: "local", State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: big, RamMB: big, StorageGB: big, VMCount: big}})
	}); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := svc.Create(ctx, CreateRequest{TaskID: strconv.Itoa(i)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := svc.Close(ctx); err != nil {
		b.Error(err)
	}
	if err := store.Close(ctx); err != nil {
		b.Error(err)
	}
}
