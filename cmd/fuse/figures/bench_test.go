package figures

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// BenchmarkScrape is one scrape of 10,000 environments on 20 hosts.
func BenchmarkScrape(b *testing.B) {
	journal := memory.New(memory.Options{})
	store, err := state.Open(b.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "bench"}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	fill(b, store)
	key, err := secrets.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		b.Fatal(err)
	}
	svc, err := hosts.New(hosts.Config{
		Store: store, Sealer: secrets.NewSealer(key), Logger: slog.New(slog.DiscardHandler),
		NewProvider: func(fleet.Host, string) (provider.Provider, error) { return nil, errors.New("none") },
	})
	if err != nil {
		b.Fatal(err)
	}
	m := metrics.New("bench")
	p := &Plane{Store: store, Hosts: svc, Metrics: m, Pauses: func() (fleet.Pauses, error) { return fleet.Pauses{}, nil }}
	m.WatchFleet(p.Fleet)
	h := m.Handler()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
		b.ReportMetric(float64(w.Body.Len()), "bytes/scrape")
	}
}

func fill(b *testing.B, store *state.Store) {
	b.Helper()
	for h := range 20 {
		if _, err := store.Update(b.Context(), func(tx *state.Tx) error {
			id := fmt.Sprintf("h%02d", h)
			all := fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20}
			if err := tx.PutHost(fleet.Host{ID: id, State: fleet.HostActive, Capacity: all}); err != nil {
				return err
			}
			for i := range 500 {
				vm := fmt.Sprintf("fuse-%s-%d", id, i)
				if err := tx.PutVM(fleet.VM{ID: vm, UID: vm, TaskID: vm, State: fleet.VMStateProvisioning, HostID: id, Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
}
