package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Full returns a T with every field set, down to the last nested one, so that
// a field which a journal forgets is missed. Different seeds give different
// values.
func Full[T any](seed int) *T {
	row := new(T)
	n := seed * 1000
	fill(reflect.ValueOf(row).Elem(), &n)
	if h, ok := any(row).(*fleet.Host); ok {
		h.Allocated = fleet.HostCapacity{} // derived, never stored
	}
	return row
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2024, 5, 6, 7, 8, 9, 1000*(*n%100_000), time.UTC)))
		return
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"n":%d}`, *n))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d é\"\\\n", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n % 250))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Interface:
		v.Set(reflect.ValueOf(fmt.Sprintf("any%d", *n)))
	default:
		panic(fmt.Sprintf("storetest: no value for a field of type %s", v.Type()))
	}
}

// fullDocument is a document of a type that this program does not know.
func fullDocument(seed int) *state.Document {
	return &state.Document{
		ID: fmt.Sprintf("d%d é/\"", seed), UpdatedAt: time.Date(2024, 5, 6, 7, 8, 9, 1000*seed, time.UTC),
		Value: json.RawMessage(fmt.Sprintf(`{"v":1,"text":"s%d \u0000 é\"","n":%d}`, seed, seed)),
	}
}

// FullBatch returns a batch with rows rows of every table, each with every
// field set.
func FullBatch(id string, rows int) state.Batch {
	b := state.Batch{ID: id, Revision: 7, At: time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)}
	for i := range rows {
		vm, host, task := Full[fleet.VM](i), Full[fleet.Host](i), Full[fleet.Task](i)
		snapshot, letter, life := Full[fleet.Snapshot](i), Full[fleet.DeadLetter](i), Full[fleet.Life](i)
		log, record := Full[fleet.StartupLog](i), Full[state.Idempotency](i)
		b.Writes = append(b.Writes,
			state.Write{Table: state.TableVMs, Key: state.Key{vm.ID}, Row: vm},
			state.Write{Table: state.TableHosts, Key: state.Key{host.ID}, Row: host},
			state.Write{Table: state.TableTasks, Key: state.Key{task.TaskID}, Row: task},
			state.Write{Table: state.TableSnapshots, Key: state.Key{snapshot.SnapshotID}, Row: snapshot},
			state.Write{Table: state.TableDeadLetters, Key: state.Key{string(letter.Kind), letter.EntityID}, Row: letter},
			state.Write{Table: state.TableLives, Key: state.Key{life.UID}, Row: life},
			state.Write{Table: state.TableStartupLogs, Key: state.Key{log.UID}, Row: log},
			state.Write{Table: state.TableIdempotency, Key: state.Key{record.Owner, record.Key}, Row: record},
		)
		for n, t := range state.Collections {
			d := fullDocument(i*100 + n)
			b.Writes = append(b.Writes, state.Write{Table: t, Key: state.Key{d.ID}, Row: d})
		}
		e := Full[fleet.Event](i)
		b.Seq++
		e.Seq = b.Seq
		b.Events = append(b.Events, *e)
	}
	return b
}
