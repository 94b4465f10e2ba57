// Program wal-reader reads and writes write-ahead logs with etcd's own code, for the tests of ringd's.
//
//	wal-reader write  DIR SEGMENT_BYTES COUNT        makes a log
//	wal-reader append DIR SEGMENT_BYTES COUNT INDEX TERM  opens one at a snapshot, as a starting etcd does, and goes on
//	wal-reader read   DIR INDEX TERM                 prints what is behind a snapshot
package main

import (
	"fmt"
	"hash/crc32"
	"os"
	"strconv"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	command, directory := arguments[0], arguments[1]
	numbers := make([]uint64, 0, 4)
	for _, argument := range arguments[2:] {
		number, err := strconv.ParseUint(argument, 10, 64)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	switch command {
	case "write":
		wal.SegmentSizeBytes = int64(numbers[0])
		return write(directory, numbers[1])
	case "append":
		wal.SegmentSizeBytes = int64(numbers[0])
		return extend(directory, numbers[1], numbers[2], numbers[3])
	case "read":
		return read(directory, numbers[0], numbers[1])
	}
	return fmt.Errorf("unknown command %q", command)
}

func payload(term, index uint64) []byte {
	data := make([]byte, index*97%2000)
	for place := range data {
		data[place] = byte(index*31 + term*7 + uint64(place))
	}
	return data
}

func entry(term, index uint64) *raftpb.Entry {
	entry := &raftpb.Entry{
		Type:  raftpb.EntryType(index % 3).Enum(),
		Term:  proto.Uint64(term),
		Index: proto.Uint64(index),
	}
	if data := payload(term, index); len(data) > 0 {
		entry.Data = data
	}
	return entry
}

func state(term, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: proto.Uint64(term), Vote: proto.Uint64(7), Commit: proto.Uint64(commit)}
}

func snapshot(term, index uint64) *walpb.Snapshot {
	return &walpb.Snapshot{
		Index:     proto.Uint64(index),
		Term:      proto.Uint64(term),
		ConfState: &raftpb.ConfState{Voters: []uint64{0xabc, 1}, Learners: []uint64{2}, AutoLeave: proto.Bool(false)},
	}
}

func write(directory string, count uint64) error {
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(0xabc), ClusterID: proto.Uint64(0xdef)})
	if err != nil {
		return err
	}
	log, err := wal.Create(zap.NewNop(), directory, metadata)
	if err != nil {
		return err
	}
	if err := save(log, 1, 1, count); err != nil {
		return err
	}
	// A new leader replaces the last three entries.
	if err := save(log, 2, count-2, 2); err != nil {
		return err
	}
	return log.Close()
}

func save(log *wal.WAL, term, first, count uint64) error {
	for index := first; index < first+count; index++ {
		entries := []*raftpb.Entry{entry(term, index)}
		if index%4 == 0 && index+1 < first+count {
			index++
			entries = append(entries, entry(term, index))
		}
		if err := log.Save(state(term, index-min(index, 5)), entries); err != nil {
			return err
		}
		if index%40 == 0 {
			if err := log.SaveSnapshot(snapshot(term, index-10)); err != nil {
				return err
			}
		}
	}
	return nil
}

func extend(directory string, count, index, term uint64) error {
	log, err := wal.Open(zap.NewNop(), directory, &walpb.Snapshot{Index: proto.Uint64(index), Term: proto.Uint64(term)})
	if err != nil {
		return err
	}
	_, hardState, entries, err := log.ReadAll()
	if err != nil {
		return err
	}
	if err := save(log, hardState.GetTerm()+1, index+uint64(len(entries))+1, count); err != nil {
		return err
	}
	return log.Close()
}

func read(directory string, index, term uint64) error {
	start := &walpb.Snapshot{Index: proto.Uint64(index), Term: proto.Uint64(term)}
	if _, err := wal.Verify(zap.NewNop(), directory, start); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), directory)
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	log, err := wal.OpenForRead(zap.NewNop(), directory, start)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	metadata, hardState, entries, err := log.ReadAll()
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	var owner etcdserverpb.Metadata
	if err := proto.Unmarshal(metadata, &owner); err != nil {
		return err
	}
	fmt.Printf("member %x cluster %x\n", owner.GetNodeID(), owner.GetClusterID())
	fmt.Printf("state %d %d %d\n", hardState.GetTerm(), hardState.GetVote(), hardState.GetCommit())
	for _, snapshot := range snapshots {
		conf := snapshot.GetConfState()
		fmt.Printf("snapshot %d %d %v %v\n", snapshot.GetIndex(), snapshot.GetTerm(), conf.GetVoters(), conf.GetLearners())
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for _, entry := range entries {
		checksum := crc32.Checksum(entry.GetData(), castagnoli)
		fmt.Printf("entry %d %d %d %d %08x\n", int32(entry.GetType()), entry.GetTerm(), entry.GetIndex(), len(entry.GetData()), checksum)
	}
	return nil
}
