// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the statistics on known values, and of the verdict on noise.

use super::*;

fn near(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance, "{a} is not {b}");
}

#[test]
fn quantiles_agree_with_published_tables() {
    for (degrees, t) in
        [(1, 12.706), (4, 2.776), (9, 2.262), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)]
    {
        near(t_quantile(0.025, degrees), t, 6e-4);
    }
    near(t_quantile(0.025, 1_000_000), 1.959_96, 1e-4);
    // With two degrees of freedom the tail is (1 - t / sqrt(t^2 + 2)) / 2.
    for tail in [0.0015, 0.02, 0.0325, 0.4] {
        let u: f64 = 1.0 - 2.0 * tail;
        near(t_quantile(tail, 2), (2.0 * u * u / (1.0 - u * u)).sqrt(), 1e-6);
    }
}

#[test]
fn a_summary_is_the_textbook_one() {
    // The sample has mean 5, variance 32/7 and standard error sqrt(32/7/8). It is skewed to the
    // right. With seven degrees of freedom the tails are 3.25 % below and 8 * 0.05 % above.
    let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    let s = Summary::of(&values);
    let error = (32.0f64 / 7.0 / 8.0).sqrt();
    near(s.mean.unwrap(), 5.0, 1e-12);
    near(s.low.unwrap(), 5.0 - t_quantile(0.0325, 7) * error, 1e-9);
    near(s.high.unwrap(), 5.0 + t_quantile(0.004, 7) * error, 1e-9);
    let mirrored = Summary::of(&values.map(|value| -value));
    near(mirrored.low.unwrap(), -s.high.unwrap(), 1e-9);
    near(mirrored.high.unwrap(), -s.low.unwrap(), 1e-9);
    let even = Summary::of(&[1.0, 2.0, 3.0]);
    near(even.high.unwrap(), 2.0 + 4.3027 / 3f64.sqrt(), 1e-4);
    near(even.low.unwrap(), 2.0 - 4.3027 / 3f64.sqrt(), 1e-4);
    assert_eq!(Summary::of(&[3.0]), Summary { n: 1, mean: Some(3.0), low: None, high: None });
    assert_eq!(Summary::of(&[3.0; 3]).low, Some(3.0));
    assert_eq!(Summary::of(&[]), Summary { n: 0, mean: None, low: None, high: None });
}

#[test]
fn pairing_takes_out_what_seeds_have_in_common() {
    // The baseline's values differ between seeds by up to a factor of two, and the treatment adds
    // 10 % to each value. In pairs by seed, the change of 10 % must stand out from this spread.
    let pairs = [(100.0, 110.0), (200.0, 220.0), (150.0, 165.0)];
    let c = change(&pairs);
    near(c.relative.unwrap(), 0.1, 1e-12);
    near(c.low.unwrap(), 0.1, 1e-9);
    assert_eq!(c.verdict, Verdict::Different);
    // If the same values are paired in another order, the two values of a pair no longer share an
    // effect of the seed, and the change is lost in noise.
    let c = change(&[(100.0, 220.0), (200.0, 165.0), (150.0, 110.0)]);
    near(c.relative.unwrap(), 0.1, 1e-12);
    assert_eq!(c.verdict, Verdict::Noise);
}

#[test]
fn noise_is_called_noise() {
    let c = change(&[(100.0, 103.0), (100.0, 98.0), (100.0, 101.0), (100.0, 99.0)]);
    assert_eq!(c.verdict, Verdict::Noise);
    assert!(c.low.unwrap() < 0.0 && c.high.unwrap() > 0.0);
    let c = change(&[(100.0, 108.0), (100.0, 109.0), (100.0, 107.0), (100.0, 108.0)]);
    assert_eq!(c.verdict, Verdict::Different);
    near((c.low.unwrap() + c.high.unwrap()) / 2.0, 0.08, 1e-9);
}

#[test]
fn what_cannot_be_said_is_not_said() {
    assert_eq!(change(&[(1.0, 2.0)]).verdict, Verdict::Unknown);
    assert_eq!(change(&[(1.0, 2.0)]).relative, Some(1.0));
    assert_eq!((change(&[]).verdict, change(&[]).relative), (Verdict::NoRuns, None));
    assert_eq!(change(&[(5.0, 5.0), (7.0, 7.0)]).verdict, Verdict::Equal);
    // With a baseline of 0 there is no ratio; the verdict then comes from the difference.
    let c = change(&[(0.0, 4.0), (0.0, 5.0), (0.0, 6.0)]);
    assert_eq!((c.relative, c.verdict), (None, Verdict::Different));
    assert_eq!(change(&[(0.0, 0.0), (0.0, 0.0)]).verdict, Verdict::Equal);
}

/// The interval has its stated coverage: two samples of one distribution are called different in
/// about one case of twenty.
#[test]
fn false_alarms_are_one_in_twenty() {
    let mut stream = scxlab_machine::Stream::new(7, "stats test", 0);
    let mut draw = || (0..12).map(|_| stream.below(1_000_000) as f64 / 1e6).sum::<f64>() + 94.0;
    let trials = 2000;
    let alarms = (0..trials)
        .filter(|_| {
            let pairs: Vec<_> = (0..6).map(|_| (draw(), draw())).collect();
            change(&pairs).verdict == Verdict::Different
        })
        .count();
    assert!((60..=150).contains(&alarms), "{alarms} of {trials}");
}

/// The expected values come from scipy's `ttest_ind(equal_var=False)` for the difference of means.
/// With a constant baseline, the ratio's interval is the difference's interval over the baseline.
#[test]
fn independent_samples_have_welchs_interval() {
    let base = [10.0, 10.0, 10.0, 10.0];
    let treated = [11.0, 12.0, 13.0];
    let found = change_between(&base, &treated);
    // The treated mean has variance 1/3, with 2 degrees of freedom. Half the width of the
    // difference's interval is 4.3027 * sqrt(1/3) = 2.4842, which is 0.24842 of the baseline's mean
    // 10.
    assert!((found.relative.unwrap() - 0.2).abs() < 1e-12);
    assert!((found.high.unwrap() - 0.2 - 0.24842).abs() < 1e-4, "{found:?}");
    assert_eq!(found.verdict, Verdict::Noise);
    assert_eq!(change_between(&base, &[12.0, 12.1, 11.9, 12.0]).verdict, Verdict::Different);
    assert_eq!(change_between(&base, &base).verdict, Verdict::Equal);
    assert_eq!(change_between(&base, &[3.0]).verdict, Verdict::Unknown);
    assert_eq!(change_between(&base, &[]).verdict, Verdict::NoRuns);
    assert_eq!(change_between(&[], &base).relative, None);
    assert_eq!(change_between(&[0.0, 0.0], &[1.0, 2.0]).verdict, Verdict::Unknown);
}

/// Draws for simulated experiments: a fixed sequence of numbers.
struct Draws(u64);

impl Draws {
    /// A number from 0 to 1, both excluded (splitmix64).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + 1e-17
    }

    fn normal(&mut self) -> f64 {
        let (r, angle) = (self.uniform(), self.uniform());
        (-2.0 * r.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// A factor with mean 1 and standard deviation `spread`.
    fn factor(&mut self, shape: Shape, spread: f64) -> f64 {
        match shape {
            Shape::Normal => 1.0 + spread * self.normal(),
            Shape::LogNormal => {
                let variance = (1.0 + spread * spread).ln();
                (variance.sqrt() * self.normal() - variance / 2.0).exp()
            }
            Shape::Exponential => 1.0 - spread - spread * self.uniform().ln(),
            Shape::Uniform => 1.0 + spread * 12f64.sqrt() * (self.uniform() - 0.5),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Normal,
    LogNormal,
    /// The largest skew: a lower bound with an exponential tail.
    Exponential,
    Uniform,
}

/// Returns the part of so many experiments whose interval contains the truth. `experiment` returns
/// whether it does.
fn covered(count: u32, seed: u64, mut experiment: impl FnMut(&mut Draws) -> bool) -> f64 {
    let mut draws = Draws(seed);
    f64::from((0..count).filter(|_| experiment(&mut draws)).count() as u32) / f64::from(count)
}

/// The interval of a change contains the true change in 93 to 97 % of experiments: for pairs that
/// share the effect of their seed, with few runs and skewed noise.
#[test]
fn intervals_of_changes_cover_the_truth() {
    for (shape, spread) in [
        (Shape::Normal, 0.02),
        (Shape::Normal, 0.2),
        (Shape::LogNormal, 0.05),
        (Shape::LogNormal, 0.3),
        (Shape::Exponential, 0.2),
    ] {
        for runs in [3, 5, 10, 30] {
            let part = covered(2000, runs as u64, |draws| {
                let pair = |_| {
                    let shared = draws.factor(Shape::LogNormal, 0.2);
                    let base = 100.0 * shared * draws.factor(shape, spread);
                    (base, 105.0 * shared * draws.factor(shape, spread))
                };
                let change = change(&(0..runs).map(pair).collect::<Vec<_>>());
                (change.low.unwrap()..change.high.unwrap()).contains(&0.05)
            });
            println!("{shape:?} {spread}, {runs} runs: {part}");
            assert!((0.93..=0.97).contains(&part), "{shape:?} {spread}, {runs} runs: {part}");
        }
    }
}

/// The interval of a mean contains the true mean in as many experiments as
/// docs/concepts/confidence.md says, in percent, for 3, 5, 10 and 30 runs; and in 93 to 97 percent
/// of them for the rows that the page promises it for.
#[test]
fn intervals_of_means_cover_the_truth() {
    let page = include_str!("../../../../docs/concepts/confidence.md");
    let mut table = String::new();
    for (values, shape, spread, is_promised) in [
        ("normal, any spread", Shape::Normal, 0.2, true),
        ("log-normal, spread 10 %", Shape::LogNormal, 0.1, true),
        ("log-normal, spread 30 %", Shape::LogNormal, 0.3, true),
        ("log-normal, spread 50 %", Shape::LogNormal, 0.5, true),
        ("log-normal, spread 80 %", Shape::LogNormal, 0.8, true),
        ("exponential, any spread", Shape::Exponential, 0.5, true),
        ("uniform, any spread", Shape::Uniform, 0.5, false),
    ] {
        let parts = [3, 5, 10, 30].map(|runs| {
            covered(20_000, 7 + runs as u64, |draws| {
                let values: Vec<f64> = (0..runs).map(|_| draws.factor(shape, spread)).collect();
                let Summary { low, high, .. } = Summary::of(&values);
                (low.unwrap()..=high.unwrap()).contains(&1.0)
            })
        });
        let cells = parts.map(|part| format!(" {:.1} |", part * 100.0)).concat();
        let row = format!("| {values} |{cells}\n");
        assert!(!is_promised || parts.iter().all(|part| (0.93..=0.97).contains(part)), "{row}");
        table += &row;
    }
    assert!(page.contains(&table), "{table}");
}

#[test]
fn probabilities_are_those_of_the_t_distribution() {
    // Of (1, 2, 3): the mean is 2 and its standard error 1/sqrt(3), t is 3.4641 with two degrees of
    // freedom, and the upper tail is (1 - t / sqrt(t^2 + 2)) / 2.
    let t = 12f64.sqrt();
    near(p_greater(&[1.0, 2.0, 3.0]).unwrap(), (1.0 - t / (t * t + 2.0).sqrt()) / 2.0, 1e-9);
    near(p_greater(&[-1.0, 1.0]).unwrap(), 0.5, 1e-12);
    assert_eq!(p_greater(&[1.0]), None);
    assert_eq!(p_greater(&[1.0, 1.0]), Some(0.0));
    assert_eq!(p_greater(&[0.0, 0.0]), Some(1.0));
    for degrees in [1, 2, 5, 29, 100] {
        near(t_tail(t_quantile(0.025, degrees), degrees), 0.025, 2e-5);
        near(t_tail(-t_quantile(0.025, degrees), degrees), 0.975, 2e-5);
    }
}

#[test]
fn many_p_values_are_adjusted() {
    let all = adjusted(&[0.01, 0.04, 0.03, 0.005]);
    let wanted = [0.02, 0.04, 0.04, 0.02];
    all.iter().zip(wanted).for_each(|(p, wanted)| near(*p, wanted, 1e-12));
    assert!(adjusted(&[]).is_empty());
    assert_eq!(adjusted(&[1.0]), [1.0]);
}

/// Less negative is more, whatever the sign of the ratio.
#[test]
fn a_change_of_negative_values_has_the_sign_of_the_difference() {
    let pairs = [(-700.0, -62.0), (-710.0, -60.0), (-690.0, -64.0)];
    let up = change(&pairs);
    assert!(up.relative.unwrap() > 0.9 && up.low.unwrap() > 0.8, "{up:?}");
    assert_eq!(up.verdict, Verdict::Different);
    let down = change(&pairs.map(|(a, b)| (b, a)));
    assert!(down.relative.unwrap() < -9.0 && down.high.unwrap() < 0.0, "{down:?}");
    let [base, other] = [0, 1].map(|at| pairs.map(|pair| [pair.0, pair.1][at]));
    let between = change_between(&base, &other);
    assert!(between.relative.unwrap() > 0.9 && between.low.unwrap() > 0.8, "{between:?}");
}
