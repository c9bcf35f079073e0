package model_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Only a marker that was written by the very history of the records counts as
// written by it, whatever copy of them was restored and whatever came after.
func TestWroteTellsHistoriesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type world struct {
			spans []model.Span
			head  uint64
		}
		names := 0
		live := world{head: 1}
		term := func(w *world) {
			names++
			epoch := uint64(1)
			if n := len(w.spans); n > 0 {
				epoch = w.spans[n-1].Epoch + 1
			}
			w.head++
			w.spans = append(append([]model.Span{}, w.spans...), model.Span{Epoch: epoch, Lineage: fmt.Sprint(names), From: w.head})
		}
		type written struct {
			marker model.Marker
			life   int
		}
		var markers []written
		copies := []world{}
		life, lives := 0, map[int][]int{0: {0}} // a life knows what its forebears wrote, up to its copy
		limit := map[[2]int]uint64{}
		var copyLife []int
		term(&live)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				term(&live)
			case 1, 2:
				live.head++
				last := live.spans[len(live.spans)-1]
				markers = append(markers, written{model.Marker{Epoch: last.Epoch, Lineage: last.Lineage, Revision: live.head}, life})
			case 3:
				copies, copyLife = append(copies, live), append(copyLife, life)
			case 4: // a server always begins a term when it starts
				if len(copies) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(copies)-1).Draw(t, "copy")
				from := copyLife[i]
				live = copies[i]
				next := len(lives)
				lives[next] = append(append([]int{}, lives[from]...), next)
				for _, old := range lives[from] {
					cut := live.head
					if l, ok := limit[[2]int{from, old}]; ok {
						cut = min(cut, l)
					}
					limit[[2]int{next, old}] = cut
				}
				life = next
				term(&live)
			}
			for _, m := range markers {
				ours := false
				for _, l := range lives[life] {
					cut, cutThere := limit[[2]int{life, l}]
					ours = ours || l == m.life && (!cutThere || m.marker.Revision <= cut)
				}
				if got := model.Wrote(live.spans, live.head, m.marker); got != ours {
					t.Fatalf("marker %+v of life %d in life %d: %v, want %v; %+v head %d", m.marker, m.life, life, got, ours, live.spans, live.head)
				}
			}
		}
	})
	for _, m := range []model.Marker{{}, {Epoch: 1, Lineage: "a"}, {Epoch: 1, Revision: 1}, {Epoch: 1, Lineage: "b", Revision: 1}, {Epoch: 2, Lineage: "a", Revision: 1}} {
		if model.Wrote([]model.Span{{Epoch: 1, Lineage: "a", From: 1}}, 5, m) {
			t.Errorf("%+v counts as ours", m)
		}
	}
}
