// SPDX-License-Identifier: GPL-2.0-only
//! Round trips, and damage.

use proptest::prelude::*;

use super::*;

fn table(texts: Vec<Option<String>>, ints: Vec<Option<i64>>, bools: Vec<Option<bool>>) -> Table {
    let floats = ints.iter().map(|n| n.map(|n| n as f64 / 3.0)).collect();
    let columns = [
        ("text", Values::Text(texts)),
        ("int", Values::Int(ints)),
        ("bool", Values::Bool(bools)),
        ("float", Values::Float(floats)),
    ];
    let columns = columns.map(|(name, values)| Column { name: name.to_owned(), values });
    Table { columns: columns.into(), notes: vec![("version".to_owned(), "1".to_owned())] }
}

prop_compose! {
    fn tables()(rows in prop::collection::vec(
        (any::<Option<String>>(), any::<Option<i64>>(), any::<Option<bool>>()), 0..200,
    )) -> Table {
        let (mut texts, mut ints, mut bools) = (Vec::new(), Vec::new(), Vec::new());
        for (text, int, bool) in rows {
            texts.push(text);
            ints.push(int);
            bools.push(bool);
        }
        table(texts, ints, bools)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(table in tables()) {
        prop_assert_eq!(read(&write(&table)).unwrap(), table);
    }

    #[test]
    fn damage_is_an_error_or_another_table(table in tables(), at in any::<prop::sample::Index>(), xor in 1u8..) {
        let mut file = write(&table);
        let at = at.index(file.len());
        file[at] ^= xor;
        let _ = read(&file);
        let _ = read(&file[..at]);
        prop_assert!(read(&file[..at]).is_err());
    }
}

#[test]
fn columns_can_be_chosen() {
    let all = table(vec![None, Some("a".to_owned())], vec![Some(1), None], vec![None, None]);
    let some = read_columns(&write(&all), &|name| name == "int" || name == "bool").unwrap();
    let names: Vec<&str> = some.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["int", "bool"]);
    assert_eq!(some.column("int"), all.column("int"));
    assert_eq!(some.notes, all.notes);
}

#[test]
fn groups_of_rows_follow_each_other() {
    let rows = (1 << 18) + 7;
    let texts = (0..rows).map(|n| (n % 3 > 0).then(|| format!("t{}", n % 5))).collect();
    let ints = (0..rows).map(|n| Some(n as i64)).collect();
    let bools = (0..rows).map(|n| (n % 7 > 0).then_some(n % 2 == 0)).collect();
    let table = table(texts, ints, bools);
    assert_eq!(read(&write(&table)).unwrap(), table);
}

#[test]
fn no_parquet_is_said() {
    assert_eq!(read(b"PAR1PAR1").unwrap_err(), ParquetError::NoParquet);
    assert_eq!(read(b"").unwrap_err(), ParquetError::NoParquet);
    assert_eq!(read(b"{}").unwrap_err(), ParquetError::NoParquet);
}
